"""One file per API family; `moldau.broker.dispatch` is the table that names them."""
