# The system fails the five programs: calls, disk, death, memory. The exhaustive loops are in nightly/faults.sh.
foreach(library failing_call failing_new)
  add_library(${library} MODULE fault/${library}.cc)
  target_link_libraries(${library} PRIVATE mt_flags ${CMAKE_DL_LIBS})
endforeach()
mt_script(failing_calls LABEL fault FILE fault/failing_calls.sh TIMEOUT 900)
mt_script(failing_allocations LABEL fault FILE fault/allocations.sh TIMEOUT 900)
mt_script(killed_programs LABEL fault FILE fault/killed.sh TIMEOUT 900)
mt_script(limited_programs LABEL fault FILE fault/limits.sh)
