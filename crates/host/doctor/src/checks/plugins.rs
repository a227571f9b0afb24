//! Plugins of Polyrail in other programs, with the results of the caller's tests.

use crate::check::{Answer, Check, Cost, Group};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "nccl-plugin",
        group: Group::Plugins,
        title: "NCCL can't use the plugin that is installed",
        cost: Cost::Breaks,
        why: "NCCL loads the plugin by name when a job starts. Without it NCCL takes its own transport, or the job ends. \
              The check loads the plugin as NCCL does, in a process of its own, and asks for its devices.",
        remedy: "Install it with `polyrail nccl install`, and set what `polyrail nccl env` prints.",
        needs_root: false,
        reversible: true,
        reads: &[
            "NCCL_NET_PLUGIN",
            "libnccl-net-polyrail.so in LD_LIBRARY_PATH and the loader's folders",
        ],
        run: |cx| Answer::outcome(cx.answers().nccl_plugin.as_ref()),
    },
    Check {
        id: "nixl-backend",
        group: Group::Plugins,
        title: "an agent of NIXL can't use the backend that is installed",
        cost: Cost::Breaks,
        why: "An agent loads its backends when it is made. The check makes one with the active environment's Python, \
              and moves 1 MiB from it to itself by the backend POLYRAIL.",
        remedy: "Install the backend again with `polyrail nixl install`. `NIXL_LOG_LEVEL=DEBUG polyrail doctor` shows \
                 more of the agent's messages.",
        needs_root: false,
        reversible: true,
        reads: &["VIRTUAL_ENV", "NIXL_PLUGIN_DIR", "libplugin_POLYRAIL.so"],
        run: |cx| Answer::outcome(cx.answers().nixl_backend.as_ref()),
    },
];
