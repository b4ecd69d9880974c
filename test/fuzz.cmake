# Parsers under libFuzzer with the address and undefined-behaviour sanitizers: any bytes are taken or refused with DataError.
# clang compiles the targets and the sources of the parsers; all else comes from this build's libraries. The test `fuzz` makes
# a short run of each target over its corpus; nightly/fuzz.sh makes long ones.
find_program(MT_CLANG NAMES clang++ clang++-19 clang++-16 clang++-15 clang++-14)
set(fuzz_targets json config safetensors manifest tokenizer megatron_index shard)
set(fuzz_sources base/json base/hash base/digest_run base/small_floats base/files text/bpe text/vocabulary text/pretokenizer
  text/unicode io/safetensors ckpt/manifest data/megatron_index data/shard_layout data/token_shard_reader model/config
  convert/hugging_face)
mt_script(fuzz LABEL unit FILE fuzz/run.sh ARGUMENTS ${fuzz_targets})
if(MT_CLANG)
  set(fuzz_flags -std=c++20 -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
    -ffp-contract=off -D_GLIBCXX_ASSERTIONS -I${CMAKE_SOURCE_DIR} -I${CMAKE_SOURCE_DIR}/lib)
  set(fuzz_objects)
  foreach(source ${fuzz_sources})
    string(REPLACE "/" "_" object fuzz_${source}.o)
    add_custom_command(OUTPUT ${object} DEPFILE ${object}.d
      COMMAND ${MT_CLANG} ${fuzz_flags} -fsanitize=fuzzer-no-link -MD -MF ${object}.d -MT ${object} -c
        ${CMAKE_SOURCE_DIR}/lib/${source}.cc -o ${object}
      DEPENDS ${CMAKE_SOURCE_DIR}/lib/${source}.cc VERBATIM)
    list(APPEND fuzz_objects ${object})
  endforeach()
  set(libraries $<TARGET_FILE:mt_convert> $<TARGET_FILE:mt_model> $<TARGET_FILE:mt_optim> $<TARGET_FILE:mt_nn>
    $<TARGET_FILE:mt_ckpt> $<TARGET_FILE:mt_comm> $<TARGET_FILE:mt_data> $<TARGET_FILE:mt_io> $<TARGET_FILE:mt_text>
    $<TARGET_FILE:mt_tensor> $<TARGET_FILE:mt_kernels> $<TARGET_FILE:mt_base>)
  set(fuzz_links ${HDF5_C_LIBRARIES} ${MPI_C_LIBRARIES} $<TARGET_FILE:Boost::program_options> ${ZSTD_LINK_LIBRARIES}
    ${UTF8PROC_LINK_LIBRARIES} ${XXHASH_LINK_LIBRARIES} $<TARGET_FILE:simdjson::simdjson> ${ZLIB_LIBRARIES} -ldl -lpthread)
  set(programs)
  foreach(target ${fuzz_targets})
    add_custom_command(OUTPUT ${target}_fuzz
      COMMAND ${MT_CLANG} ${fuzz_flags} -fsanitize=fuzzer ${CMAKE_CURRENT_SOURCE_DIR}/fuzz/${target}_fuzz.cc ${fuzz_objects}
        -Wl,--start-group ${libraries} -Wl,--end-group -o ${target}_fuzz ${fuzz_links}
      DEPENDS fuzz/${target}_fuzz.cc fuzz/fuzz.h ${fuzz_objects} ${libraries} COMMAND_EXPAND_LISTS VERBATIM)
    list(APPEND programs ${target}_fuzz)
  endforeach()
  add_custom_target(fuzz_programs ALL DEPENDS ${programs})
endif()
