"""A controller for os-ken (Debian's python3-os-ken): two slices over one link between two switches.

  port 1 --- slice red, VLAN 10 ---.            .--- port 1       each switch: port 3 leads to the other
  port 2 --- slice blue, VLAN 20 ---'-- port 3 --'--- port 2

A frame gets the tag of its slice at the edge, and leaves the other switch at the port of its slice alone. RATE_KBPS in
the environment: the rate of each slice at its edge, kbit/s; without it a slice may take the whole link.

    RATE_KBPS=1500 osken-manager --ofp-tcp-listen-port 6653 examples/openflow/slices.py
"""

import os

from os_ken.base.app_manager import OSKenApp
from os_ken.controller.handler import CONFIG_DISPATCHER, set_ev_cls
from os_ken.controller.ofp_event import EventOFPSwitchFeatures
from os_ken.ofproto import ofproto_v1_3

TRUNK = 3
# The edge port of each VLAN.
SLICES = {10: 1, 20: 2}
RATE_KBPS = int(os.environ.get("RATE_KBPS", "0"))


class Slices(OSKenApp):
    OFP_VERSIONS = [ofproto_v1_3.OFP_VERSION]

    @set_ev_cls(EventOFPSwitchFeatures, CONFIG_DISPATCHER)
    def switch_is_new(self, event):
        switch = event.msg.datapath
        protocol, parser = switch.ofproto, switch.ofproto_parser
        # Flows and meters of an earlier controller.
        switch.send_msg(self.of_all_flows(switch, protocol.OFPFC_DELETE))
        switch.send_msg(parser.OFPMeterMod(switch, protocol.OFPMC_DELETE, meter_id=protocol.OFPM_ALL))
        for vlan, port in SLICES.items():
            tag = [
                parser.OFPActionPushVlan(),
                parser.OFPActionSetField(vlan_vid=vlan | protocol.OFPVID_PRESENT),
                parser.OFPActionOutput(TRUNK),
            ]
            untag = [parser.OFPActionPopVlan(), parser.OFPActionOutput(port)]
            from_trunk = parser.OFPMatch(in_port=TRUNK, vlan_vid=vlan | protocol.OFPVID_PRESENT)
            self.add_flow(switch, parser.OFPMatch(in_port=port), tag, self.limit(switch, vlan))
            self.add_flow(switch, from_trunk, untag, [])

    @staticmethod
    def limit(switch, vlan):
        """Makes the meter of a slice."""
        protocol, parser = switch.ofproto, switch.ofproto_parser
        if RATE_KBPS == 0:
            return []
        bands = [parser.OFPMeterBandDrop(rate=RATE_KBPS, burst_size=RATE_KBPS // 10)]
        flags = protocol.OFPMF_KBPS | protocol.OFPMF_BURST
        switch.send_msg(parser.OFPMeterMod(switch, protocol.OFPMC_ADD, flags, vlan, bands))
        return [parser.OFPInstructionMeter(vlan)]

    @staticmethod
    def add_flow(switch, match, actions, limit):
        protocol, parser = switch.ofproto, switch.ofproto_parser
        apply = parser.OFPInstructionActions(protocol.OFPIT_APPLY_ACTIONS, actions)
        switch.send_msg(parser.OFPFlowMod(switch, match=match, instructions=[*limit, apply]))

    @staticmethod
    def of_all_flows(switch, command):
        protocol, parser = switch.ofproto, switch.ofproto_parser
        return parser.OFPFlowMod(switch, command=command, out_port=protocol.OFPP_ANY, out_group=protocol.OFPG_ANY)
