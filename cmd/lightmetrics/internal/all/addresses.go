package all

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"
)

// addressWait is how long a start waits for addresses that are in use: services of a group
// that was killed a moment ago may still be ending.
const addressWait = 10 * time.Second

// listener is an address that a member of the group listens on.
type listener struct {
	service string
	setting string // below the section of the service
	addr    string
}

// listeners gives the addresses of every member, as the operator's settings or the defaults have them.
func (p *plan) listeners() []listener {
	all := []listener{
		{objectstore, "listen", "127.0.0.1:4790"}, {objectstore, "admin_listen", "127.0.0.1:4791"},
		{coordinator, "http.listen", "127.0.0.1:4780"}, {coordinator, "grpc.listen", "127.0.0.1:4781"},
		{reconciler, "http.listen", "127.0.0.1:4770"}, {reconciler, "grpc.listen", "127.0.0.1:4771"},
		{ingest, "grpc.listen", "127.0.0.1:4750"}, {ingest, "http.listen", "127.0.0.1:4751"},
		{rollup, "http.listen", "127.0.0.1:4775"},
		{query, "http.listen", "127.0.0.1:4760"}, {query, "grpc.listen", "127.0.0.1:4761"},
	}
	if p.cfg.Agent {
		all = append(all, listener{agent, "http.listen", "127.0.0.1:4320"})
	}
	for i, l := range all {
		all[i].addr = p.address(l.addr, l.service, strings.Split(l.setting, ".")...)
	}
	return all
}

// awaitAddresses refuses a start when another process has one of the addresses. Otherwise that
// process, for example another group, would answer the readiness checks in place of a member.
func awaitAddresses(ctx context.Context, listeners []listener, wait time.Duration) error {
	for end := time.Now().Add(wait); ; {
		err := inUse(listeners)
		if err == nil || ctx.Err() != nil || time.Now().After(end) {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// inUse names every address that another process has. Other reasons why listening fails are reported
// by the service itself.
func inUse(listeners []listener) error {
	var errs []error
	for _, l := range listeners {
		// An attempt to listen asks the kernel exactly what the service itself will ask.
		s, err := net.Listen("tcp", l.addr)
		if err == nil {
			err = s.Close()
		}
		if errors.Is(err, syscall.EADDRINUSE) {
			errs = append(errs, fmt.Errorf("%s is in use by another process: stop it, or set %s.%s", l.addr, l.service, l.setting))
		}
	}
	return errors.Join(errs...)
}
