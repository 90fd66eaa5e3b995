"""The SDK, on the standard library alone.

    Client, AsyncClient ──► Conversation (what to send, when to retry) ──► drivers (sockets)

The policy is in retrying.py, once, and knows neither sockets nor threads nor event loops.

Importing it is cheap: a job pays for it at every start, and so does a program that throttles
only some of its runs. `dataclasses` (which loads `inspect`, and compiles code for each class)
would double the price, so values are NamedTuples or small classes here; and what is needed only
once a client is made (questions, sockets, an event loop) or a function decorated (inspect) is
imported there. What every check needs is put off no further than that: a fork that catches
another thread in the middle of an import would leave the child waiting for that import forever.
"""
