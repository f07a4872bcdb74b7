"""From captured calls to trainable token sequences: chains, builders, the token ledger, breaks explained, exporters."""
