//! A minimal front door. It stamps packets of UDP over IPv4 without options and redirects them to
//! an AF_XDP socket. It drops all other packets.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const BPF_MAP_CREATE: i64 = 0;
const BPF_MAP_UPDATE_ELEM: i64 = 2;
const BPF_PROG_LOAD: i64 = 5;
const BPF_LINK_CREATE: i64 = 28;
const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_TYPE_XDP: u32 = 37;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

const HELPER_KTIME_GET_NS: i32 = 5;
const HELPER_REDIRECT_MAP: i32 = 51;
const HELPER_XDP_ADJUST_META: i32 = 54;
const XDP_DROP: i32 = 1;

/// One instruction: opcode, registers (source << 4 | destination), offset, immediate.
#[derive(Clone, Copy)]
#[repr(C)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

const fn op(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction {
        code,
        registers: source << 4 | destination,
        offset,
        immediate,
    }
}

const MOV64_REG: u8 = 0xbf;
const MOV64: u8 = 0xb7;
const ADD64: u8 = 0x07;
const LOAD_W: u8 = 0x61;
const LOAD_H: u8 = 0x69;
const LOAD_B: u8 = 0x71;
const STORE_W: u8 = 0x63;
const STORE_H: u8 = 0x6b;
const STORE_B: u8 = 0x73;
const STORE_DW: u8 = 0x7b;
const TO_BIG_ENDIAN: u8 = 0xdc;
const JUMP_NOT_EQUAL: u8 = 0x55;
const JUMP_GREATER_REG: u8 = 0x2d;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const LOAD_MAP: u8 = 0x18;
const PSEUDO_MAP_FD: u8 = 1;

/// The front door of one port. Redirects all arriving packets to chain `spi`, generation 0,
/// position 0.
pub struct FrontDoor {
    map: OwnedFd,
    _program: OwnedFd,
    /// Closing the link detaches the program.
    _link: OwnedFd,
}

impl FrontDoor {
    /// Loads the program and attaches it to an interface.
    pub fn attach(ifindex: u32, spi: u32) -> io::Result<Self> {
        let map = bpf(BPF_MAP_CREATE, &[MAP_TYPE_XSKMAP, 4, 4, 64])?;
        let program = load(&program(map.as_raw_fd(), spi.cast_signed()))?;
        let link = bpf(
            BPF_LINK_CREATE,
            &[
                program.as_raw_fd() as u32,
                ifindex,
                ATTACH_TYPE_XDP,
                XDP_FLAGS_DRV_MODE,
            ],
        )?;
        Ok(Self {
            map,
            _program: program,
            _link: link,
        })
    }

    /// Redirects a queue's packets to a socket.
    pub fn set_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let (key, value) = (queue, socket.as_raw_fd() as u32);
        let pointers = [&raw const key as u64, &raw const value as u64];
        let attribute = [
            self.map.as_raw_fd() as u32,
            0,
            pointers[0] as u32,
            (pointers[0] >> 32) as u32,
            pointers[1] as u32,
            (pointers[1] >> 32) as u32,
            0,
            0,
        ];
        raw_bpf(BPF_MAP_UPDATE_ELEM, &attribute).map(drop)
    }
}

fn program(map: i32, spi: i32) -> Vec<Instruction> {
    // Registers: r6 context, r7 stamp, r8 start of the metadata, r9 start of the packet.
    let mut code = vec![
        op(MOV64_REG, 6, 1, 0, 0),
        op(CALL, 0, 0, 0, HELPER_KTIME_GET_NS),
        op(MOV64_REG, 7, 0, 0, 0),
        op(MOV64_REG, 1, 6, 0, 0),
        op(MOV64, 2, 0, 0, -24),
        op(CALL, 0, 0, 0, HELPER_XDP_ADJUST_META),
        op(JUMP_NOT_EQUAL, 0, 0, DROP, 0),
        op(LOAD_W, 9, 6, 0, 0),
        op(LOAD_W, 8, 6, 8, 0),
        op(LOAD_W, 3, 6, 4, 0),
        op(MOV64_REG, 1, 8, 0, 0),
        op(ADD64, 1, 0, 0, 24),
        op(JUMP_GREATER_REG, 1, 9, DROP, 0),
        op(MOV64_REG, 1, 9, 0, 0),
        op(ADD64, 1, 0, 0, 42),
        op(JUMP_GREATER_REG, 1, 3, DROP, 0),
        // EtherType IPv4 (loaded as little endian), header of 20 bytes, UDP.
        op(LOAD_H, 1, 9, 12, 0),
        op(JUMP_NOT_EQUAL, 1, 0, DROP, 0x0008),
        op(LOAD_B, 1, 9, 14, 0),
        op(JUMP_NOT_EQUAL, 1, 0, DROP, 0x45),
        op(LOAD_B, 1, 9, 23, 0),
        op(JUMP_NOT_EQUAL, 1, 0, DROP, 17),
        op(STORE_DW, 8, 7, 0, 0),
    ];
    for (store, offset, value) in [
        (STORE_W, 8, spi),
        (STORE_H, 12, 0),
        (STORE_B, 14, 0),
        (STORE_B, 15, 0b100),
        (STORE_H, 16, 14),
        (STORE_H, 18, 34),
        (STORE_H, 20, 42),
    ] {
        code.push(op(MOV64, 1, 0, 0, value));
        code.push(op(store, 8, 1, offset, 0));
    }
    code.extend([
        op(LOAD_H, 1, 9, 16, 0),
        op(TO_BIG_ENDIAN, 1, 0, 0, 16),
        op(ADD64, 1, 0, 0, 14),
        op(STORE_H, 8, 1, 22, 0),
        op(LOAD_W, 2, 6, 16, 0),
        op(LOAD_MAP, 1, PSEUDO_MAP_FD, 0, map),
        op(0, 0, 0, 0, 0),
        op(MOV64, 3, 0, 0, XDP_DROP),
        op(CALL, 0, 0, 0, HELPER_REDIRECT_MAP),
        op(EXIT, 0, 0, 0, 0),
    ]);
    let drop_at = code.len();
    code.extend([op(MOV64, 0, 0, 0, XDP_DROP), op(EXIT, 0, 0, 0, 0)]);
    for (at, instruction) in code.iter_mut().enumerate() {
        if instruction.offset == DROP {
            instruction.offset = i16::try_from(drop_at - at - 1).expect("a short program");
        }
    }
    code
}

/// Placeholder for the distance to the drop instructions at the end.
const DROP: i16 = i16::MAX;

fn load(code: &[Instruction]) -> io::Result<OwnedFd> {
    let license = c"GPL".as_ptr() as u64;
    let mut log = vec![0_u8; 65_536];
    let (code_at, log_at) = (code.as_ptr() as u64, log.as_mut_ptr() as u64);
    let attribute = [
        PROG_TYPE_XDP,
        code.len() as u32,
        code_at as u32,
        (code_at >> 32) as u32,
        license as u32,
        (license >> 32) as u32,
        1,
        log.len() as u32,
        log_at as u32,
        (log_at >> 32) as u32,
    ];
    bpf(BPF_PROG_LOAD, &attribute).inspect_err(|_| {
        eprintln!("{}", String::from_utf8_lossy(&log).trim_end_matches('\0'));
    })
}

fn bpf(command: i64, attribute: &[u32]) -> io::Result<OwnedFd> {
    let fd = raw_bpf(command, attribute)?;
    // SAFETY: all callers use commands that return a new descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn raw_bpf(command: i64, attribute: &[u32]) -> io::Result<i32> {
    // The kernel accepts a longer attribute if the additional bytes are zero.
    let mut padded = [0_u32; 32];
    padded[..attribute.len()].copy_from_slice(attribute);
    // SAFETY: `padded` and the objects to which its pointers refer outlive the call.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            padded.as_ptr(),
            size_of::<[u32; 32]>(),
        )
    };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(rc as i32)
    }
}
