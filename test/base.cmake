# lib/base, lib/comm, the tensor pool and cmd/run_main.
