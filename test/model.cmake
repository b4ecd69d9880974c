# Operations, layers, the model, AdamW, checked against finite differences and PyTorch.
add_library(mt_model_testing STATIC testing.cc)
target_include_directories(mt_model_testing PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(mt_model_testing PUBLIC mt_flags mt_model mt_optim GTest::gtest)

foreach(part linear shards attention block loss config model adam lr_schedule)
  mt_test(${part} LABEL unit LIBS mt_model_testing mt_model mt_optim)
endforeach()

# Takes any file of the golden script gpt_tiny.py.
add_executable(golden_test golden_test.cc golden_file.cc)
target_link_libraries(golden_test PRIVATE mt_flags mt_model_testing mt_data mt_io)
foreach(file gpt-tiny gpt-odd-a gpt-odd-b)
  add_test(NAME golden_${file} COMMAND golden_test ${CMAKE_CURRENT_SOURCE_DIR}/data/golden/${file}.h5)
  set_tests_properties(golden_${file} PROPERTIES LABELS golden TIMEOUT 300)
endforeach()
