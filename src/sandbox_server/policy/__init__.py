"""The command policy: may this command run? Pure: text in, verdict out."""
