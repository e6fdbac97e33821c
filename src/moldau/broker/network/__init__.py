"""Sockets: client connections, their limits, and the way of a frame to its handler."""
