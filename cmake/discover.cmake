# sluice_discover_tests(target ARGS... [TEST_LIST list] LABELS label... [ENVIRONMENT name=value...]): gtest_discover_tests
# for labels and variables of which there are several. It takes them apart: of PROPERTIES LABELS "a;b" only `a` is set, and
# all that follows is lost. So they are set for the whole list of tests, behind it.
include(GoogleTest)
function(sluice_discover_tests target)
  cmake_parse_arguments(PARSE_ARGV 1 of "" "TEST_LIST" "LABELS;ENVIRONMENT")
  if(NOT of_TEST_LIST)
    set(of_TEST_LIST ${target}_TESTS)
  endif()
  gtest_discover_tests(${target} TEST_LIST ${of_TEST_LIST} ${of_UNPARSED_ARGUMENTS})
  set(behind ${CMAKE_CURRENT_BINARY_DIR}/${of_TEST_LIST}.cmake)
  file(CONFIGURE OUTPUT ${behind} @ONLY CONTENT [==[
foreach(test IN LISTS @of_TEST_LIST@)
  set_tests_properties("${test}" PROPERTIES LABELS "@of_LABELS@" ENVIRONMENT "@of_ENVIRONMENT@")
endforeach()
]==])
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${behind})
endfunction()
