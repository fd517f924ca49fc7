"""The modules of Mininet 2.3, on networks of Myelin. Start reading at `net.Mininet`; `_lab.Lab` makes the network.

A switch is a kernel bridge, which learns by itself, so no script needs a controller. Names and conventions are those of
Mininet.
"""
