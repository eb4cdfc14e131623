package run

import "testing"

func TestLoopback(t *testing.T) {
	for a, want := range map[string]bool{
		"127.0.0.1:1": true, "127.9.9.9:1": true, "[::1]:1": true, "localhost:1": true, "[::ffff:127.0.0.1]:1": true,
		":1": false, "0.0.0.0:1": false, "[::]:1": false, "10.0.0.1:1": false, "localhost.example.org:1": false,
		"127.0.0.1": false, "": false, "127.0.0.1.example.org:1": false,
	} {
		if got := Loopback(a); got != want {
			t.Errorf("Loopback(%q) = %v", a, got)
		}
	}
}
