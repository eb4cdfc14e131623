package rpc

import (
	"cmp"
	"crypto/tls"
	"slices"
	"sync"
	"time"
)

// Certificate is one that this process shows to others.
type Certificate struct {
	File     string
	NotAfter time.Time
}

// inUse has the certificates of this process, of servers and clients, by file. Each file
// is kept once however often settings are read, so that it is as long as the settings.
var inUse struct {
	sync.Mutex
	byFile map[string]*reloader[tls.Certificate]
}

// loadCertificate reads a certificate and its key, and again when they change.
func loadCertificate(cert, key string) (*reloader[tls.Certificate], error) {
	r := &reloader[tls.Certificate]{files: []string{cert, key}, load: loadPair(cert, key)}
	if _, err := r.get(); err != nil {
		return nil, err
	}
	inUse.Lock()
	defer inUse.Unlock()
	if inUse.byFile == nil {
		inUse.byFile = map[string]*reloader[tls.Certificate]{}
	}
	inUse.byFile[cert] = r
	return r, nil
}

// Certificates lists what this process shows now, by file name: where a new file can't be
// read, the one before it.
func Certificates() []Certificate {
	inUse.Lock()
	defer inUse.Unlock()
	var out []Certificate
	for file, r := range inUse.byFile {
		if c, err := r.get(); err == nil && c.Leaf != nil {
			out = append(out, Certificate{File: file, NotAfter: c.Leaf.NotAfter})
		}
	}
	slices.SortFunc(out, func(a, b Certificate) int { return cmp.Compare(a.File, b.File) })
	return out
}
