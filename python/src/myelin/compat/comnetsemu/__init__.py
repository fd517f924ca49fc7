"""The modules of ComNetsEmu 0.3, on networks of Myelin: containers in emulated hosts. Start reading at `net`."""
