# Import of Hugging Face's GPT-2, greedy generation, perplexity, and the programs around them.
mt_test(hugging_face LABEL golden LIBS mt_convert mt_infer)
mt_test(generate LABEL unit LIBS mt_infer)
mt_test(perplexity LABEL unit LIBS mt_eval)
