"""Several processes behind one listening socket."""
