mt_test(gemm LABEL unit LIBS mt_kernels)
mt_script(kernel_symbols LABEL check FILE check/kernel_symbols.sh)

# Run by hand: see the file.
add_executable(gemm_bench bench/gemm_bench.cc)
target_link_libraries(gemm_bench PRIVATE mt_flags mt_kernels ${CMAKE_DL_LIBS})
