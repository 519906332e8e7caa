# cmake -D DIRECTORY=<all names are relative to> -D LIST=<file with a list of names> -D OUTPUT=<file> -P source_hash.cmake
# A source that says what the files were.
file(READ ${LIST} files)
if(NOT files)
  message(FATAL_ERROR "${LIST} names no files")
endif()
set(hashes)
foreach(name ${files})
  file(SHA256 ${DIRECTORY}/${name} hash)
  string(APPEND hashes "${hash} ${name}\n")
endforeach()
string(SHA256 all "${hashes}")
string(SUBSTRING ${all} 0 16 all)
file(WRITE ${OUTPUT} "// Made by cmake/source_hash.cmake.
#include \"base/source_hash.hpp\"

std::string_view sluice::base::source_hash() noexcept {
  return \"${all}\";
}
")
