"""A controller for os-ken (Debian's python3-os-ken): each switch learns where its stations are.

    osken-manager --ofp-tcp-listen-port 6653 examples/openflow/learning_switch.py
"""

from os_ken.base.app_manager import OSKenApp
from os_ken.controller.handler import CONFIG_DISPATCHER, MAIN_DISPATCHER, set_ev_cls
from os_ken.controller.ofp_event import EventOFPPacketIn, EventOFPSwitchFeatures
from os_ken.lib.packet.ethernet import ethernet
from os_ken.lib.packet.packet import Packet
from os_ken.ofproto import ofproto_v1_3


class LearningSwitch(OSKenApp):
    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # Of each switch: the port of each station.
        self.ports = {}

    @set_ev_cls(EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    def switch_is_new(self, event):
        """Frames without a flow of their own come here."""
        switch = event.msg.datapath
        self.ports[switch.id] = {}
        to_controller = switch.ofproto_parser.OFPActionOutput(
            switch.ofproto.OFPP_CONTROLLER, switch.ofproto.OFPCML_NO_BUFFER
        )
        self.add_flow(switch, 0, switch.ofproto_parser.OFPMatch(), to_controller)

    @set_ev_cls(EventOFPPacketIn, MAIN_DISPATCHER)
    def frame_has_no_flow(self, event):
        switch, port = event.msg.datapath, event.msg.match["in_port"]
        protocol, parser = switch.ofproto, switch.ofproto_parser
        frame = Packet(event.msg.data).get_protocol(ethernet)
        ports = self.ports[switch.id]
        ports[frame.src] = port
        output = parser.OFPActionOutput(ports.get(frame.dst, protocol.OFPP_FLOOD))
        if frame.dst in ports:
            match = parser.OFPMatch(in_port=port, eth_dst=frame.dst, eth_src=frame.src)
            self.add_flow(switch, 1, match, output)
        switch.send_msg(
            parser.OFPPacketOut(switch, protocol.OFP_NO_BUFFER, port, [output], event.msg.data)
        )

    @staticmethod
    def add_flow(switch, priority, match, action):
        protocol, parser = switch.ofproto, switch.ofproto_parser
        apply = parser.OFPInstructionActions(protocol.OFPIT_APPLY_ACTIONS, [action])
        switch.send_msg(
            parser.OFPFlowMod(switch, priority=priority, match=match, instructions=[apply])
        )
