package config

import (
	"errors"
	"strings"
	"testing"
)

func TestAffinity(t *testing.T) {
	c := &WorkerConfig{Device: "cuda-12"}
	c.SetDefaults()
	if err := c.Validate(); err != nil || c.Affinity != AffinityAuto || c.DeviceNumber() != 12 {
		t.Errorf("%+v, %v", c, err)
	}
	c.Affinity = "numa"
	if err := c.Validate(); !errors.Is(err, ErrValue) || !strings.Contains(err.Error(), `affinity: bad value: "numa"; want auto or off`) {
		t.Errorf("%v", err)
	}
	c.Affinity = AffinityOff
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}
