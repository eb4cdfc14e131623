package etcd

import (
	"net"
	"runtime"
	"syscall"
)

// dialAs opens a socket as another user. Only one thread becomes that user, and it is
// not used again.
func dialAs(uid int, socket string) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if _, _, e := syscall.RawSyscall(syscall.SYS_SETFSUID, uintptr(uid), 0, 0); e != 0 {
			done <- e
			return
		}
		conn, err := net.Dial("unix", socket)
		if err == nil {
			err = conn.Close()
		}
		done <- err
	}()
	return <-done
}
