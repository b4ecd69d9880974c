# Training: the trainer, mt-train, and how well a model learns.
mt_test(blend LABEL unit LIBS mt_data)
mt_test(trainer LABEL unit LIBS mt_train TIMEOUT 600)
mt_test(training_start LABEL unit LIBS mt_train)
mt_test(training_reports LABEL unit LIBS mt_train)
mt_script(cli_mt_train LABEL cli FILE cli/mt_train.sh)
mt_script(cli_mt_train_resume LABEL cli FILE cli/mt_train_resume.sh)
mt_script(train_signals LABEL fault FILE fault/train_signals.sh TIMEOUT 600)
mt_script(training_quality LABEL golden FILE training_quality.sh TIMEOUT 900)
