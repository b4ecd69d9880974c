# Grids of ranks.
mt_test(communicator LABEL grid LIBS mt_comm)
target_sources(communicator_test PRIVATE communicator_cases.cc)
add_executable(communicator_ranks grid/communicator_ranks.cc communicator_cases.cc)
target_include_directories(communicator_ranks PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(communicator_ranks PRIVATE mt_flags mt_comm)
mt_script(communicator_processes LABEL grid FILE grid/communicator.sh)
mt_test(grid LABEL grid LIBS mt_comm)
mt_test(schedule LABEL unit LIBS mt_train)
