"""Transports that carry a layer's history from its owner to the group: one file per transport."""
