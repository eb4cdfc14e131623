// Command docgen writes the pages, and parts of pages, that follow from files of this
// repository: docs/reference/http.md and the tables of docs/guide/sizing.md. Run it in the root:
//
//	go run ./internal/docgen
//
// A test fails where what is checked in is not what it would write.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// page is a file and what makes its content.
type page struct {
	path string // below the root
	make func(root string) ([]byte, error)
}

var pages = []page{
	{"docs/reference/http.md", httpPage},
	{"docs/guide/sizing.md", sizingPage},
	{"docs/guide/permissions.md", permissionsPage},
}

func main() {
	for _, p := range pages {
		b, err := p.make(".")
		if err == nil {
			err = os.WriteFile(filepath.FromSlash(p.path), b, 0o644)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "docgen: %s: %v\n", p.path, err)
			os.Exit(1)
		}
	}
}
