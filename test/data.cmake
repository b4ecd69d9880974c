pkg_check_modules(PCRE2 IMPORTED_TARGET libpcre2-8)
mt_test(bpe LABEL golden LIBS mt_text $<TARGET_NAME_IF_EXISTS:PkgConfig::PCRE2>)
if(TARGET PkgConfig::PCRE2)
  target_compile_definitions(bpe_test PRIVATE MT_HAVE_PCRE2)
endif()
mt_test(token_shard LABEL unit LIBS mt_data)
mt_test(megatron_index LABEL unit LIBS mt_data)
mt_test(gpt_batches LABEL golden LIBS mt_data)
mt_test(line_reader LABEL unit LIBS mt_data PkgConfig::ZSTD ZLIB::ZLIB)
mt_test(json_lines LABEL golden LIBS mt_data)
mt_script(mt_preprocess LABEL cli FILE cli/mt_preprocess.sh)
mt_script(mt_preprocess_inputs LABEL cli FILE cli/mt_preprocess_inputs.sh)
mt_script(preprocess_faults LABEL fault FILE fault/preprocess.sh TIMEOUT 900)
mt_script(mt_preprocess_golden LABEL golden FILE cli/mt_preprocess_golden.sh)

# The tokenizer: a bench, and the digest of its ids and its instructions as a test.
add_executable(tokenizer_bench bench/tokenizer_bench.cc)
target_link_libraries(tokenizer_bench PRIVATE mt_flags mt_data)
# As released: other builds have other instructions.
if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT MT_SANITIZE)
  string(REGEX MATCH "^[0-9]+" compiler_version "${CMAKE_CXX_COMPILER_VERSION}")
  set(tokenizer_data ${CMAKE_CURRENT_SOURCE_DIR}/data/tokenizer)
  mt_script(instructions_tokenizer LABEL check FILE check/instructions.sh
    ARGUMENTS "${CMAKE_CXX_COMPILER_ID}-${compiler_version}" tokenizer "*BpeTokenizer::encode(*" $<TARGET_FILE:tokenizer_bench>
      ${tokenizer_data}/gpt2/vocab.json ${tokenizer_data}/gpt2/merges.txt ${tokenizer_data}/gpt2_encode.jsonl 3)
endif()
