# The system fails the five programs: calls, disk, death, memory. The exhaustive loops are in nightly/faults.sh.
mt_script(failing_calls LABEL fault FILE fault/failing_calls.sh TIMEOUT 900)
