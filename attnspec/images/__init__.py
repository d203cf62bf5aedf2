"""Container images on the host's side: how a runner names one, the folders that pin them, what is stored here."""
