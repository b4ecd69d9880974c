# Import of Hugging Face's GPT-2, greedy generation, perplexity, and the programs around them.
mt_test(hugging_face LABEL golden LIBS mt_convert mt_infer)
mt_test(generate LABEL unit LIBS mt_infer)
mt_test(sampling LABEL golden LIBS mt_infer mt_io)
mt_test(text_stream LABEL unit LIBS mt_infer)
mt_test(perplexity LABEL unit LIBS mt_eval)
mt_test(scores LABEL unit LIBS mt_eval)
mt_test(shakespeare LABEL golden LIBS mt_base)
foreach(program reshard eval generate)
  if(TARGET mt-${program})
    add_dependencies(shakespeare_test mt-${program})
  endif()
  mt_script(cli_mt_${program} LABEL cli FILE cli/mt_${program}.sh)
endforeach()

# Not a test: generation beside the bandwidth of memory; see the file.
add_executable(decode_bench bench/decode_bench.cc)
target_link_libraries(decode_bench PRIVATE mt_flags mt_model)

# The choice of a token: a bench, and its digest and instructions as a test.
add_executable(sampling_bench bench/sampling_bench.cc)
target_link_libraries(sampling_bench PRIVATE mt_flags mt_infer)
# As released: other builds have other instructions.
if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT MT_SANITIZE)
  string(REGEX MATCH "^[0-9]+" compiler_version "${CMAKE_CXX_COMPILER_VERSION}")
  mt_script(instructions_sampling LABEL check FILE check/instructions.sh
    ARGUMENTS "${CMAKE_CXX_COMPILER_ID}-${compiler_version}" sampling "mt::Sampler::candidates*,mt::log_probability*"
      $<TARGET_FILE:sampling_bench>)
endif()
if(TARGET mt-reshard)
  mt_script(independent_readers LABEL golden FILE cli/independent_readers.sh)
endif()
if(TARGET mt-generate AND TARGET mt-eval AND TARGET mt-reshard)
  mt_script(cli_mt_generate_characters LABEL cli FILE cli/mt_generate_characters.sh)
endif()
