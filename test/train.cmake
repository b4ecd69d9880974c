# Training: the trainer, mt-train, and how well a model learns.
mt_test(trainer LABEL unit LIBS mt_train TIMEOUT 600)
mt_test(training_start LABEL unit LIBS mt_train)
mt_script(cli_mt_train LABEL cli FILE cli/mt_train.sh)
mt_script(train_signals LABEL fault FILE fault/train_signals.sh TIMEOUT 600)
mt_script(training_quality LABEL golden FILE training_quality.sh TIMEOUT 900)
# Threads that wait without spinning: tests share the machine with others.
set_tests_properties(trainer training_start cli_mt_train train_signals training_quality PROPERTIES
  ENVIRONMENT OMP_WAIT_POLICY=passive)
