# Grids of ranks.
mt_test(communicator LABEL grid LIBS mt_comm)
target_sources(communicator_test PRIVATE communicator_cases.cc)
