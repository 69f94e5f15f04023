"""Search behind one interface: a service over HTTP, or an index of our own."""
