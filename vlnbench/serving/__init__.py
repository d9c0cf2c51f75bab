"""An agent served to other environments and machines: wire format and server."""
