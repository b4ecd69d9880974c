foreach(check levels sizes format twins pages readme_table)
  mt_script(check_${check} LABEL check FILE check/${check}.sh)
endforeach()
mt_script(check_install LABEL check FILE check/install.sh TIMEOUT 600)
