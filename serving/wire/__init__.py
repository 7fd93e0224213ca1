"""HTTP/1.1 to the replicas: a client that costs a streamed answer half of what a general one does.

`connections` keeps and makes connections, a `connection` carries one request at a time, a `response`
is its answer as it comes. Framing is parsed by llhttp (httptools), as on the router's own port.
"""
