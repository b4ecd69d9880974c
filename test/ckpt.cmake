# Files that can be trusted: HDF5, safetensors, checkpoints.
mt_test(hdf5 LABEL unit LIBS mt_io)
mt_test(safetensors LABEL unit LIBS mt_io)
mt_test(checkpoint LABEL unit LIBS mt_ckpt)
mt_test(checkpoint_damage LABEL unit LIBS mt_ckpt)
mt_test(async_save LABEL unit LIBS mt_ckpt)
add_executable(save_tool fault/save_tool.cc)
target_link_libraries(save_tool PRIVATE mt_flags mt_ckpt)
mt_script(checkpoint_faults LABEL fault FILE fault/checkpoint_faults.sh TIMEOUT 900)

# Run by hand: bench/checkpoint.sh.
add_executable(checkpoint_bench bench/checkpoint_bench.cc)
target_link_libraries(checkpoint_bench PRIVATE mt_flags mt_convert)
