package s3api

import (
	"encoding/xml"
	"net/http"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3xml"
)

// encryptionXML is the configuration of a bucket's encryption. There is one for all buckets: that of the store.
type encryptionXML struct {
	XMLName xml.Name            `xml:"ServerSideEncryptionConfiguration"`
	Rules   []encryptionRuleXML `xml:"Rule"`
}

type encryptionRuleXML struct {
	Default          encryptionDefaultXML `xml:"ApplyServerSideEncryptionByDefault"`
	BucketKeyEnabled bool                 `xml:"BucketKeyEnabled"`
	Blocked          *struct{}            `xml:"BlockedEncryptionTypes"`
}

type encryptionDefaultXML struct {
	Algorithm string `xml:"SSEAlgorithm"`
	KeyID     string `xml:"KMSMasterKeyID,omitempty"`
}

// encrypts reports whether every new object is encrypted at rest.
func (s *Server) encrypts() bool { return s.EncryptedAtRest || s.Engine.Seals() }

func (c *call) getEncryption() error {
	if err := c.authorizeBucket("GetEncryptionConfiguration"); err != nil {
		return err
	}
	if !c.encrypts() {
		return s3err.NoEncryption
	}
	return c.writeXML(encryptionXML{
		XMLName: xml.Name{Space: xmlns, Local: "ServerSideEncryptionConfiguration"},
		Rules:   []encryptionRuleXML{{Default: encryptionDefaultXML{Algorithm: "AES256"}}},
	})
}

// putEncryption takes what is the case anyway.
func (c *call) putEncryption() error {
	if err := c.authorizeBucket("PutEncryptionConfiguration"); err != nil {
		return err
	}
	body, err := c.readAll(maxSettingBytes)
	if err != nil {
		return err
	}
	var in encryptionXML
	if s3xml.Decode(body, &in) != nil || len(in.Rules) != 1 {
		return s3err.MalformedXML
	}
	if in.Rules[0].Blocked != nil {
		return s3err.NotImplemented.With("BlockedEncryptionTypes is not implemented.")
	}
	if d := in.Rules[0].Default; d.Algorithm != "AES256" || d.KeyID != "" || !c.encrypts() {
		return s3err.NotImplemented.With("The encryption of a bucket is that of the store: AES256 where it has keys.")
	}
	c.w.WriteHeader(http.StatusOK)
	return nil
}

// deleteEncryption brings the default back, which is what there is.
func (c *call) deleteEncryption() error {
	if err := c.authorizeBucket("PutEncryptionConfiguration"); err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}
