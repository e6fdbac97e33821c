"""One file per API family; `moldau.broker.network.dispatch` is the table that names them."""
