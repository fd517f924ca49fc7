//! The resources that a journal records.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::removal::ignore_missing_link;
use crate::error::Result;
use crate::link::group::LinkGroup;
use crate::link::{Link, LinkId};
use crate::netlink::{Netlink, Request};
use crate::netns;

/// A resource that outlives the process that makes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Resource {
    /// A named network namespace, made by [`crate::netns::Netns::create_owned`].
    Netns {
        /// Name under `/run/netns`.
        name: String,
        /// Owner that the creator recorded. A removal keeps a namespace of another owner.
        owner: String,
    },
    /// A link in the namespace of the process that removes it. For a veth, the kernel removes the
    /// other end too.
    Link {
        /// Name of the link. Only this run uses the name.
        name: String,
    },
    /// Many links in the namespace of the process that removes them.
    Links(LinkGroup),
    /// The promiscuous mode of another program's link, if the mode was off before this run.
    Promiscuous(ForeignLink),
    /// The qdisc that [`crate::htb::create`] or [`crate::fq::create`] added to another program's
    /// link.
    Qdisc(ForeignLink),
    /// A mounted eBPF file system with its pinned objects.
    Bpffs {
        /// Mount point of the file system.
        path: PathBuf,
    },
    /// All processes with this argument, and their descendants. This record is for processes whose
    /// numbers are unknown before the start.
    Processes {
        /// A whole argument of the command line. Only this run uses the argument.
        argument: String,
    },
    /// A control group with all its processes and subgroups.
    Cgroup {
        /// Path of the group, `myelin-RUN/NAME`. Only this run uses `RUN`.
        path: String,
    },
    /// Hugepage files, in every hugetlbfs.
    HugePages {
        /// Prefix of the file names: DPDK's `--file-prefix`.
        prefix: String,
    },
    /// A file, a socket, or an object pinned in an eBPF file system.
    File {
        /// Path of the file.
        path: PathBuf,
    },
    /// Another agent, with all resources in its journal.
    Agent {
        /// The agent's run directory: an argument of its command line, with the file `journal`. The
        /// removal removes the directory too.
        run_dir: PathBuf,
    },
    /// A directory and its contents.
    Directory {
        /// Path of the directory.
        path: PathBuf,
    },
}

/// Another program's link. The other program may rename the link, and give the old name to another
/// link. So the index in the link's namespace identifies the link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForeignLink {
    /// Name of the link when the record was written.
    pub name: String,
    /// Interface index. `None` in a journal of an older version: the name identifies the link, in
    /// the namespace of the process that removes the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ifindex: Option<u32>,
    /// Cookie of the link's network namespace ([`Netlink::namespace_cookie`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<u64>,
}

impl ForeignLink {
    /// Describes a link in the namespace of `netlink`.
    pub fn new(netlink: &Netlink, link: &Link) -> Result<Self> {
        Ok(Self {
            name: link.name.clone(),
            ifindex: Some(link.index),
            namespace: Some(netlink.namespace_cookie()?),
        })
    }

    /// Finds the link, with a socket in the link's namespace. Returns `None` if the link or the
    /// namespace does not exist, or if the namespace has no name.
    fn find(&self) -> Result<Option<(Netlink, Link)>> {
        let mut netlink = Netlink::open()?;
        if let Some(cookie) = self.namespace
            && netlink.namespace_cookie()? != cookie
        {
            match netns::find_by_cookie(cookie) {
                Some(namespace) => netlink = Netlink::open_in(&namespace)?,
                None => return Ok(None),
            }
        }
        let found = match self.ifindex {
            Some(index) => netlink.link_by_index(index),
            None => netlink.link(&self.name),
        };
        match found {
            Ok(link) => Ok(Some((netlink, link))),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Applies a change to the link, if the link still exists.
    pub(super) fn change(
        &self,
        change: impl FnOnce(&mut Netlink, &LinkId) -> Result<Option<Request>>,
    ) -> Result<()> {
        let Some((mut netlink, link)) = self.find()? else {
            return Ok(());
        };
        let request = change(&mut netlink, &link.id())?;
        ignore_missing_link(netlink.apply(request))
    }
}
