# Files that can be trusted: HDF5, safetensors, checkpoints.
mt_test(hdf5 LABEL unit LIBS mt_io)
mt_test(safetensors LABEL unit LIBS mt_io)
