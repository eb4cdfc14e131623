package proc

import (
	"net"
	"testing"
)

// TestFixed: many addresses, each once, each free, none of those that are given by chance.
func TestFixed(t *testing.T) {
	seen := map[string]bool{}
	for range 3 {
		addrs, err := Fixed(20)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range addrs {
			if seen[a] {
				t.Errorf("%s is given twice", a)
			}
			seen[a] = true
			l, err := net.Listen("tcp", a)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if p := l.Addr().(*net.TCPAddr).Port; p < fixedFrom || p >= fixedFrom+fixedPorts {
				t.Errorf("port %d", p)
			}
		}
	}
	if len(seen) != 60 {
		t.Errorf("%d addresses, want 60", len(seen))
	}
}
