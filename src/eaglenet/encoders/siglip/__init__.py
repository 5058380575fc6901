"""SigLIP and SigLIP 2 of fixed resolution: towers, their files, their tokenizers."""
