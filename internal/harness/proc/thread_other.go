//go:build !linux

package proc

import "syscall"

// Elsewhere a child outlives a parent that is killed.
func deathSignal() *syscall.SysProcAttr { return nil }

func lockThread() {}
