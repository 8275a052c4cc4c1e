"""The local stack: a broker, Postgres and a model server that outlive the command which starts them."""
