# sluice_discover_tests(target ARGS... [TEST_LIST list] LABELS label... [ENVIRONMENT name=value...]): gtest_discover_tests
# for labels and variables of which there are several. It takes them apart: of PROPERTIES LABELS "a;b" only `a` is set, and
# all that follows is lost. So they are set for the whole list of tests, behind it.
#
# [SHARDS n] with SLUICE_TESTS_IN_SHARDS: n tests of ctest's instead, each its part of the cases in one process. What
# a sanitizer takes to start and to end is as long as most cases are.
include(GoogleTest)
function(sluice_discover_tests target)
  cmake_parse_arguments(PARSE_ARGV 1 of "" "TEST_LIST;SHARDS" "LABELS;ENVIRONMENT")
  if(SLUICE_TESTS_IN_SHARDS AND of_SHARDS)
    sluice_add_shards(${target} ${of_SHARDS} "${of_LABELS}" "${of_ENVIRONMENT}" ${of_UNPARSED_ARGUMENTS})
    return()
  endif()
  if(NOT of_TEST_LIST)
    set(of_TEST_LIST ${target}_TESTS)
  endif()
  # Parameters have names; as values some are addresses.
  gtest_discover_tests(${target} TEST_LIST ${of_TEST_LIST} NO_PRETTY_VALUES ${of_UNPARSED_ARGUMENTS})
  set(behind ${CMAKE_CURRENT_BINARY_DIR}/${of_TEST_LIST}.cmake)
  file(CONFIGURE OUTPUT ${behind} @ONLY CONTENT [==[
foreach(test IN LISTS @of_TEST_LIST@)
  set_tests_properties("${test}" PROPERTIES LABELS "@of_LABELS@" ENVIRONMENT "@of_ENVIRONMENT@")
endforeach()
]==])
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${behind})
endfunction()

function(sluice_add_shards target shards labels environment)
  cmake_parse_arguments(PARSE_ARGV 4 of "" "TEST_PREFIX;TEST_FILTER;DISCOVERY_TIMEOUT" "PROPERTIES")
  set(filter)
  if(of_TEST_FILTER)
    set(filter "--gtest_filter=${of_TEST_FILTER}")
  endif()
  set(prefix ${of_TEST_PREFIX})
  if(NOT prefix)
    set(prefix ${target}.)
  endif()
  math(EXPR last "${shards} - 1")
  foreach(shard RANGE ${last})
    set(name ${prefix}${shard})
    add_test(NAME ${name} COMMAND ${target} --gtest_brief=1 ${filter})
    set_tests_properties(${name} PROPERTIES ${of_PROPERTIES} TIMEOUT 900 LABELS "${labels}" ENVIRONMENT
      "${environment};GTEST_TOTAL_SHARDS=${shards};GTEST_SHARD_INDEX=${shard}")
  endforeach()
endfunction()
