# The system fails the five programs: calls, disk, death, memory. The exhaustive loops are in nightly/faults.sh.
mt_script(failing_calls LABEL fault FILE fault/failing_calls.sh TIMEOUT 900)
add_library(failing_new MODULE fault/failing_new.cc)
target_link_libraries(failing_new PRIVATE mt_flags ${CMAKE_DL_LIBS})
mt_script(failing_allocations LABEL fault FILE fault/allocations.sh ARGUMENTS $<TARGET_FILE:failing_new> TIMEOUT 900)
mt_script(killed_programs LABEL fault FILE fault/killed.sh TIMEOUT 900)
mt_script(limited_programs LABEL fault FILE fault/limits.sh)
