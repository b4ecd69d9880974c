# Training: the trainer, mt-train, and how well a model learns.
mt_test(training_length LABEL unit LIBS mt_train TIMEOUT 600)
mt_test(blend LABEL unit LIBS mt_data)
mt_test(trainer LABEL unit LIBS mt_train TIMEOUT 600)
mt_test(training_start LABEL unit LIBS mt_train)
mt_test(training_reports LABEL unit LIBS mt_train)
mt_script(cli_mt_train LABEL cli FILE cli/mt_train.sh)
mt_script(cli_mt_train_resume LABEL cli FILE cli/mt_train_resume.sh)
mt_script(cli_mt_train_checkpoints LABEL cli FILE cli/mt_train_checkpoints.sh)
mt_script(train_signals LABEL fault FILE fault/train_signals.sh TIMEOUT 600)
mt_script(training_quality LABEL golden FILE training_quality.sh TIMEOUT 900)

# Run by hand: see the file, and bench/step.sh.
add_executable(step_bench bench/step_bench.cc)
target_link_libraries(step_bench PRIVATE mt_flags mt_train ${CMAKE_DL_LIBS})
