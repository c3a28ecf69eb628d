# Word pieces of BERT's tokenizers.
