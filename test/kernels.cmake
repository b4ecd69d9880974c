# The vector functions, compiled with each kernel set's flags.
function(mt_vector_probe name)
  add_library(mt_vector_probe_${name} OBJECT vector_probe.cc)
  target_link_libraries(mt_vector_probe_${name} PRIVATE mt_flags)
  target_compile_options(mt_vector_probe_${name} PRIVATE -O3 ${ARGN})
  target_compile_definitions(mt_vector_probe_${name} PRIVATE MT_KERNEL_SET=${name})
endfunction()
mt_vector_probe(baseline)
mt_vector_probe(avx2 -mavx2 -mfma)
mt_vector_probe(avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma)
mt_test(vector LABEL unit LIBS mt_vector_probe_baseline mt_vector_probe_avx2 mt_vector_probe_avx512)
mt_test(kernels_attention LABEL unit LIBS mt_kernels)
mt_test(kernels_rows LABEL unit LIBS mt_kernels)
mt_test(kernels LABEL unit LIBS mt_kernels)

# Not a test: kernels_bench [threads] prints rates.
add_executable(kernels_bench bench/kernels_bench.cc)
target_link_libraries(kernels_bench PRIVATE mt_flags mt_kernels)
mt_test(bf16 LABEL unit LIBS mt_convert)
