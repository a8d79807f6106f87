//! The process of a pod, as the kernel shows it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cluster::Pod;

/// Bytes that a squeezed process may still allocate.
const SLACK: u64 = 4 << 10;

/// The first process of a pod's container.
pub(crate) struct PodProcess {
    id: u32,
}

impl PodProcess {
    pub(crate) fn of(pod: &Pod) -> Self {
        let ids = fs::read_dir("/proc").unwrap().flatten();
        let found = ids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(|id| {
            let groups = fs::read_to_string(format!("/proc/{id}/cgroup")).unwrap_or_default();
            groups.contains(pod.container())
        });
        let id = found.unwrap_or_else(|| panic!("no process of {} ({})", pod.name, pod.uid()));
        Self { id }
    }

    /// The first value of a field of `/proc/ID/status`.
    pub(crate) fn status(&self, field: &str) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id)).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(&format!("{field}:")));
        line.unwrap().split_whitespace().next().unwrap().to_owned()
    }

    pub(crate) fn has_read_only_root(&self) -> bool {
        let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", self.id)).unwrap();
        let root = mounts.lines().find(|line| line.split(' ').nth(4) == Some("/")).unwrap();
        root.split(' ').nth(5).unwrap().split(',').any(|option| option == "ro")
    }

    /// The limit of its control group, in bytes.
    pub(crate) fn memory_limit(&self) -> u64 {
        self.memory("memory.limit_in_bytes", "memory.max")
    }

    /// Lowers the limit of its control group to little more than it uses, unless it has ended.
    pub(crate) fn squeeze(&self) {
        if !Path::new("/proc").join(self.id.to_string()).exists() {
            return;
        }

        let used = self.memory("memory.usage_in_bytes", "memory.current");
        let file = self.memory_file("memory.limit_in_bytes", "memory.max");
        fs::write(file, (used + SLACK).to_string()).unwrap();
    }

    fn memory(&self, first_version: &str, second_version: &str) -> u64 {
        let file = self.memory_file(first_version, second_version);
        fs::read_to_string(file).unwrap().trim().parse().unwrap()
    }

    /// A file of its control group, by its name in either version of control groups.
    fn memory_file(&self, first_version: &str, second_version: &str) -> PathBuf {
        let groups = fs::read_to_string(format!("/proc/{}/cgroup", self.id)).unwrap();
        let files = groups.lines().filter_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let controllers = parts.next()?;
            let path = parts.next()?.trim_start_matches('/');
            match controllers {
                "memory" => Some(["/sys/fs/cgroup/memory", path, first_version]),
                "" => Some(["/sys/fs/cgroup", path, second_version]),
                _ => None,
            }
        });
        let mut found = files.map(|parts| parts.iter().collect::<PathBuf>());
        found.find(|file| file.exists()).expect("a control group of memory")
    }

    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill").args(["-s", signal, &self.id.to_string()]).status();
        assert!(status.unwrap().success());
    }
}
